# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Thalweg's learned rate controller: model files, quantisation, the integer reference."""
