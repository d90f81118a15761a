// SPDX-License-Identifier: GPL-2.0-only
/* What decides when a device is polled, for thrift_test.c to be tested with. */
#include "../kbp/window.c"
