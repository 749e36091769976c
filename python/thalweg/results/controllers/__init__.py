# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The published tables of rate controllers with ours beside them, as :mod:`thalweg.evaluate`
simulates them."""
