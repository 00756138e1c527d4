# SPDX-License-Identifier: Apache-2.0
"""run, test and tools/*.sh in a checkout made here, among stubs of the commands they call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGE = "stage0_single_gpu"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

# Each stub writes its name and arguments as one line to $CALLS.
RECORD = '#!/usr/bin/env bash\nprintf "%s\\n" "${0##*/} $*" >>"$CALLS"\n'

# A stage's program: says which arguments it got, and where.
PROGRAM = '#!/usr/bin/env bash\nprintf "<%s>" "$PWD" "$@"\n'

# Like the real one: prints what it knows, and fails if it does not know one of the names.
DPKG_QUERY = r"""#!/usr/bin/env bash
shift 2 # -W -f=FORMAT
status=0
for name in "$@"; do
  if [[ " $INSTALLED " == *" $name "* ]]; then
    printf '%s=installed\n' "$name"
  elif [[ " $FOREIGN " == *" $name "* ]]; then
    printf '%s:amd64=installed\n' "$name"
  elif [[ " $REMOVED " == *" $name "* ]]; then
    printf '%s=config-files\n' "$name"
  else
    printf 'dpkg-query: no packages found matching %s\n' "$name" >&2
    status=1
  fi
done
exit $status
"""

# `sudo -n COMMAND` and `sudo NAME=VALUE COMMAND`, where the machine has it.
SUDO = '#!/usr/bin/env bash\n[[ $SUDO_WORKS ]] || exit 1\n[[ $1 == -n ]] && shift\nexec env "$@"\n'

# `python3 -m venv --clear FOLDER` makes a .venv of stubs; pip fails where PIP_FAILS is set.
PYTHON = r"""#!/usr/bin/env bash
printf '%s\n' "${0##*/} $*" >>"$CALLS"
case "$*" in
  --version) echo 'Python 3.12.0' ;;
  '-m venv --clear '*)
    mkdir -p "$4/bin"
    rm -f "$4"/.ladder-*
    cp "$0" "$4/bin/python"
    printf 'VIRTUAL_ENV=%s\n' "$4" >"$4/bin/activate"
    ;;
  '-m pip install '*) [[ ! $PIP_FAILS ]] ;;
esac
"""

# Fails, as clang-tidy does, for a source that is not there.
CLANG_TIDY = RECORD + "[[ -f ${!#} ]]\n"

STUBS = {
    "dpkg-query": DPKG_QUERY,
    "sudo": SUDO,
    "python3": PYTHON,
    "apt-get": RECORD,
    "cmake": RECORD,
    "ctest": RECORD,
    "clang-tidy-19": CLANG_TIDY,
}


def array(name: str) -> list[str]:
    """The words of one bash array of tools/setup.sh."""
    text = (ROOT / "tools/setup.sh").read_text(encoding="utf-8")
    return re.search(rf"^{name}=\(([^)]*)\)", text, re.MULTILINE).group(1).split()


BUILD_PACKAGES = array("build_packages")
ALL_PACKAGES = BUILD_PACKAGES + array("test_packages")


class ScriptsTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name).resolve()
        self.folder.chmod(0o755)  # one test runs as another user
        self.checkout = self.folder / "checkout"
        (self.checkout / "tools").mkdir(parents=True)
        for pattern in ("run", "test", "tools/*.sh", "requirements*.txt"):
            for path in ROOT.glob(pattern):
                shutil.copy(path, self.checkout / path.relative_to(ROOT))
        for name, text in STUBS.items():
            self.write_program(f"stubs/{name}", text)
        self.write_program(f"checkout/build/bin/{STAGE}", PROGRAM)
        self.calls_file = self.folder / "calls"
        self.calls_file.touch()
        self.environment = {
            "PATH": f"{self.folder / 'stubs'}:/usr/bin:/bin", "CALLS": str(self.calls_file),
            "INSTALLED": " ".join(ALL_PACKAGES), "FOREIGN": "", "REMOVED": "", "SUDO_WORKS": "1",
            "PIP_FAILS": "", "LADDER_TORCH_DIR": "/opt/libtorch"}

    def write_program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def start(self, *command: str, **changes: str) -> tuple[int, str]:
        """Runs a command in the checkout; the calls of the stubs are those of this run alone."""
        self.calls_file.write_text("", encoding="utf-8")
        done = subprocess.run(
            command, cwd=self.checkout, env=self.environment | changes, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def calls(self, name: str) -> list[str]:
        lines = self.calls_file.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.split()[0] == name]


class SetupTest(ScriptsTest):
    def test_installs_in_one_call_the_packages_that_are_missing(self) -> None:
        others = ("cmake", "ccache", "zlib1g-dev", "g++")
        some = " ".join(name for name in BUILD_PACKAGES if name not in others)
        for state, wanted in (
                ({"INSTALLED": ""}, BUILD_PACKAGES),
                ({"INSTALLED": some, "FOREIGN": "zlib1g-dev", "REMOVED": "cmake"},
                 ["g++", "cmake", "ccache"]),
                ({}, [])):
            with self.subTest(wanted):
                code, output = self.start("tools/setup.sh", **state)
                self.assertEqual(code, 0, output)
                call = "apt-get install -y -qq --no-install-recommends " + " ".join(wanted)
                self.assertEqual([one for one in self.calls("apt-get") if " update" not in one],
                                 [call] if wanted else [])

    def test_without_root_it_prints_the_line_to_type(self) -> None:
        as_user = NOBODY if os.geteuid() == 0 else []
        try:
            reachable = subprocess.run(
                [*as_user, "test", "-x", str(self.checkout / "tools/setup.sh")], check=False
            ).returncode == 0
        except FileNotFoundError:
            reachable = False
        if not reachable:
            reason = "this is root, and setpriv cannot start the script as another user"
            print(f"skipped: {reason}")  # unittest prints no more than "s"
            self.skipTest(reason)
        self.calls_file.chmod(0o666)
        known = [name for name in BUILD_PACKAGES if name not in ("cmake", "ccache")]
        code, output = self.start(
            *as_user, "tools/setup.sh", INSTALLED=" ".join(known), SUDO_WORKS=""
        )
        line = "sudo apt-get update && sudo apt-get install -y --no-install-recommends cmake ccache"
        self.assertEqual(code, 1, output)
        self.assertIn(line, [text.removeprefix("setup:").strip() for text in output.splitlines()])
        self.assertEqual(self.calls("apt-get"), [])

    def test_python_packages_are_installed_once_and_again_when_that_failed(self) -> None:
        for fails, installs in (("1", 1), ("", 1), ("", 0), ("changed", 1), ("", 1)):
            if fails == "changed":
                (self.checkout / "requirements.txt").write_text("numpy==0\n", encoding="utf-8")
            code, output = self.start("tools/setup.sh", LADDER_TORCH_DIR="", PIP_FAILS=fails)
            self.assertEqual(code != 0, bool(fails), output)
            self.assertEqual("is ready" in output, not fails, output)
            found = [call for call in self.calls("python") if "pip install" in call]
            self.assertEqual(len(found), installs, output)
            stamps = list((self.checkout / ".venv").glob(".ladder-*"))
            self.assertEqual(len(stamps), int(not fails))


class RunTest(ScriptsTest):
    def test_refuses_an_unknown_stage(self) -> None:
        for name in ("", "stage9"):
            code, output = self.start("./run", name)
            self.assertEqual(code, 2, output)
            self.assertIn(f"no stage '{name}'", output)
            self.assertEqual(self.calls_file.read_text(encoding="utf-8"), "")

    def test_flags_go_to_the_program_unchanged(self) -> None:
        code, output = self.start("./run", STAGE, "--metrics", "a  b.jsonl", "")
        self.assertEqual(code, 0, output)
        self.assertEqual(output.splitlines()[-1], f"<{self.checkout}><--metrics><a  b.jsonl><>")


class ConfigureTest(ScriptsTest):
    def test_a_moved_checkout_alone_configures_anew(self) -> None:
        link = self.folder / "link"
        link.symlink_to(self.checkout)
        for command, home, fresh in (
                (["./run", STAGE], None, ""),
                (["./run", STAGE], self.checkout, ""),
                (["./run", STAGE], link, ""),
                (["./run", STAGE], self.folder / "where-it-was", "--fresh "),
                (["./test", "--quick"], self.folder / "where-it-was", "--fresh ")):
            with self.subTest(f"{command} {home}"):
                for name in ("fmt-subbuild", "fmt-src"):
                    (self.checkout / "build/_deps" / name).mkdir(parents=True, exist_ok=True)
                if home:
                    (self.checkout / "build/CMakeCache.txt").write_text(
                        f"CMAKE_HOME_DIRECTORY:INTERNAL={home}\n", encoding="utf-8")
                code, output = self.start(*command)
                self.assertEqual(code, 0, output)
                self.assertEqual(self.calls("cmake")[0], f"cmake {fresh}--preset release")
                # The caches of fetched libraries, which --fresh leaves, go too.
                left = sorted(path.name for path in (self.checkout / "build/_deps").iterdir())
                self.assertEqual(left, ["fmt-src", "fmt-subbuild"][:1 if fresh else 2])


class LintTest(ScriptsTest):
    def test_reads_every_source_but_the_tests(self) -> None:
        for name in ("ladder/core", "bench/micro", STAGE, "tests/core"):
            (self.checkout / name).mkdir(parents=True)
        code, output = self.start("./test", "--quick", "--lint")
        self.assertEqual((code, self.calls("ctest")), (1, []), output)
        self.assertIn("no sources to lint", output)

        sources = ["bench/micro/main.cpp", "ladder/core/error.cpp", f"{STAGE}/main.cpp"]
        for name in [*sources, "tests/core/error_test.cpp"]:
            (self.checkout / name).touch()
        code, output = self.start("./test", "--quick", "--lint")
        self.assertEqual(code, 0, output)
        read = sorted(call.split()[-1] for call in self.calls("clang-tidy-19"))
        self.assertEqual(read, sources)
        self.assertIn("clang-tidy found nothing in 3 sources", output)

        self.write_program("stubs/clang-tidy-19", "#!/usr/bin/env bash\nexit 1\n")
        code, output = self.start("./test", "--quick", "--lint")
        self.assertNotEqual(code, 0, output)
        self.assertNotIn("found nothing", output)
        self.assertEqual(self.calls("ctest"), [])


if __name__ == "__main__":
    unittest.main()
