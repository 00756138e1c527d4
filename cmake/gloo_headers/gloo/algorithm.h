// SPDX-License-Identifier: Apache-2.0
// See README.md in the folder above: LibTorch includes this header and uses nothing of it.
#pragma once
