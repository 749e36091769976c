# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tables of rate controllers in the simulator: published figures, and ours beside them."""
