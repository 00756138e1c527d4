# SPDX-License-Identifier: Apache-2.0
from tests.support.in_process import output, start  # noqa: F401 fixtures
