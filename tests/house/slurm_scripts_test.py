# SPDX-License-Identifier: Apache-2.0
"""scripts/ with stubs of SLURM's commands and of torchrun. The real torchrun is in interop/."""

from __future__ import annotations

import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.start_scripts import FLAGS, StartScripts  # noqa: E402


class ByHandTest(StartScripts):
    def test_each_rank_gets_its_place_and_the_flags(self) -> None:
        code, output = self.run_script("by_hand.sh", *FLAGS, NPROC_PER_NODE="3")
        self.assertEqual(code, 0, output)
        ranks = self.calls("program")
        self.assertEqual(self.column(ranks, "RANK"), ["0", "1", "2"])
        self.assertEqual(self.column(ranks, "LOCAL_RANK"), ["0", "1", "2"])
        self.assertEqual(self.column(ranks, "WORLD_SIZE"), ["3"] * 3)
        self.assertEqual(self.column(ranks, "LOCAL_WORLD_SIZE"), ["3"] * 3)
        self.assertEqual(self.column(ranks, "MASTER_ADDR"), ["127.0.0.1"] * 3)
        self.assertEqual(self.column(ranks, "MASTER_PORT"), [self.environment["MASTER_PORT"]] * 3)
        self.assertEqual([rank["flags"] for rank in ranks], [FLAGS] * 3)

    def test_the_second_machine_goes_on_counting(self) -> None:
        code, output = self.run_script("by_hand.sh", NNODES="2", NODE_RANK="1", MASTER_ADDR="host5")
        self.assertEqual(code, 0, output)
        ranks = self.calls("program")
        self.assertEqual(self.column(ranks, "RANK"), ["2", "3"])
        self.assertEqual(self.column(ranks, "LOCAL_RANK"), ["0", "1"])
        self.assertEqual(self.column(ranks, "WORLD_SIZE"), ["4", "4"])
        self.assertEqual(self.column(ranks, "LOCAL_WORLD_SIZE"), ["2", "2"])
        self.assertEqual(self.column(ranks, "MASTER_ADDR"), ["host5", "host5"])

    def test_a_failing_rank_ends_the_others(self) -> None:
        for failing in ("0", "2"):
            code, output = self.run_script(
                "by_hand.sh", NPROC_PER_NODE="3", FAILING=failing, HANG="yes"
            )
            self.assertEqual(code, 7, output)

    def test_a_last_rank_that_fails_is_not_forgotten(self) -> None:
        for failing in ("0", "2"):
            code, output = self.run_script("by_hand.sh", NPROC_PER_NODE="3", FAILING=failing)
            self.assertEqual(code, 7, output)

    def test_a_rank_deaf_to_sigterm_is_killed(self) -> None:
        started = time.monotonic()
        code, output = self.run_script("by_hand.sh", FAILING="1", HANG="deaf", GRACE_SECONDS="0.2")
        self.assertEqual(code, 7, output)
        self.assertGreater(time.monotonic() - started, 0.2)

    def test_sigterm_and_ctrl_c_end_all_ranks(self) -> None:
        for number, expected in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            before = len(self.calls("program"))
            process = self.start("by_hand.sh", HANG="yes")
            self.wait_for_calls("program", before + 2)
            process.send_signal(number)
            code, output = self.finish(process)
            self.assertEqual(code, expected, output)


class SlurmTest(StartScripts):
    def setUp(self) -> None:
        super().setUp()
        del self.environment["MASTER_PORT"]
        self.environment |= {
            "SLURM_JOB_ID": "1234567",
            "SLURM_JOB_NODELIST": "host[5-6,9]",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_CPUS_PER_TASK": "4",
        }


class SlurmByHandTest(SlurmTest):
    def test_every_rank_of_every_machine_gets_its_place_and_the_flags(self) -> None:
        code, output = self.run_script("slurm_by_hand.sbatch", *FLAGS)
        self.assertEqual(code, 0, output)
        self.assertEqual([call["flags"] for call in self.calls("srun")], [
            ["--nodes=1", "--ntasks=1", f"--nodelist={host}", "--cpus-per-task=4"]
            for host in ("host5", "host6", "host9")])
        ranks = self.calls("program")
        self.assertEqual(self.column(ranks, "RANK"), [str(rank) for rank in range(6)])
        self.assertEqual(self.column(ranks, "LOCAL_RANK"), ["0", "1"] * 3)
        self.assertEqual(self.column(ranks, "SLURM_STEP_NODELIST"),
                         ["host5", "host5", "host6", "host6", "host9", "host9"])
        self.assertEqual(self.column(ranks, "WORLD_SIZE"), ["6"] * 6)
        self.assertEqual(self.column(ranks, "MASTER_ADDR"), ["host5"] * 6)
        self.assertEqual(self.column(ranks, "MASTER_PORT"), ["19567"] * 6)
        self.assertEqual([rank["flags"] for rank in ranks], [FLAGS] * 6)

    def test_a_failure_on_any_machine_is_the_status_of_the_job(self) -> None:
        for failing in ("0", "5"):
            code, output = self.run_script("slurm_by_hand.sbatch", FAILING=failing)
            self.assertEqual(code, 7, output)

    def test_a_failing_machine_ends_the_others(self) -> None:
        code, output = self.run_script("slurm_by_hand.sbatch", FAILING="5", HANG="yes")
        self.assertEqual(code, 7, output)

    def test_sigterm_ends_all_machines(self) -> None:
        process = self.start("slurm_by_hand.sbatch", HANG="yes")
        self.wait_for_calls("program", 6)
        process.send_signal(signal.SIGTERM)
        code, output = self.finish(process)
        self.assertEqual(code, 143, output)

    def test_without_a_host_list_nothing_starts(self) -> None:
        code, output = self.run_script("slurm_by_hand.sbatch", SLURM_JOB_NODELIST="nonsense")
        self.assertNotEqual(code, 0, output)
        self.assertEqual(self.calls("srun"), [])


class SlurmTorchrunTest(SlurmTest):
    def test_srun_starts_one_torchrun_a_machine(self) -> None:
        code, output = self.run_script("slurm_torchrun.sbatch")
        self.assertEqual(code, 0, output)
        self.assertEqual(
            [call["flags"] for call in self.calls("srun")],
            [["--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=4", "--kill-on-bad-exit=1"]],
        )

    def test_torchrun_gets_the_meeting_point_and_the_flags(self) -> None:
        code, output = self.run_script("slurm_torchrun.sbatch", *FLAGS, NPROC_PER_NODE="8")
        self.assertEqual(code, 0, output)
        expected = ["--nnodes", "3", "--nproc-per-node", "8", "--rdzv-backend", "c10d", "--rdzv-id",
                    "1234567", "--rdzv-endpoint", "host5:19567", "--no-python",
                    self.environment["PROGRAM"], *FLAGS]
        self.assertEqual([call["flags"] for call in self.calls("torchrun")], [expected])

    def test_the_status_of_srun_is_that_of_the_job(self) -> None:
        code, output = self.run_script("slurm_torchrun.sbatch", FAILING="")
        self.assertEqual(code, 7, output)

    def test_without_a_host_list_nothing_starts(self) -> None:
        code, output = self.run_script("slurm_torchrun.sbatch", SLURM_JOB_NODELIST="nonsense")
        self.assertNotEqual(code, 0, output)
        self.assertEqual(self.calls("srun"), [])


class TwoNodesTest(StartScripts):
    def test_both_machines_type_the_same_line(self) -> None:
        code, output = self.run_script("torchrun_two_nodes.sh", "host5", *FLAGS)
        self.assertEqual(code, 0, output)
        expected = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id",
                    "two_nodes", "--rdzv-endpoint", "host5:29400", "--no-python",
                    self.environment["PROGRAM"], *FLAGS]
        self.assertEqual([call["flags"] for call in self.calls("torchrun")], [expected])

    def test_a_missing_host_is_asked_for(self) -> None:
        code, output = self.run_script("torchrun_two_nodes.sh")
        self.assertEqual((code, output.count("\n")), (2, 1), output)
        self.assertIn("expected HOST or --local", output)

    def test_the_trial_starts_two_torchruns_at_the_loopback_address(self) -> None:
        code, output = self.run_script("torchrun_two_nodes.sh", "--local", *FLAGS, RDZV_PORT="4000")
        self.assertEqual(code, 0, output)
        both = [call["flags"] for call in self.calls("torchrun")]
        self.assertEqual(len(both), 2)
        self.assertEqual(both[0], both[1])
        self.assertIn("127.0.0.1:4000", both[0])
        self.assertEqual(both[0][-len(FLAGS):], FLAGS)


if __name__ == "__main__":
    unittest.main()
