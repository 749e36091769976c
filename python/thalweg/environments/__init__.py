# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Environments for reinforcement learning, with the interfaces of Gymnasium and PettingZoo.

An agent is a flow. It decides each time that one of its round-trip probes has been answered, or
that the loss of one is known, so agents act asynchronously: whoever is in the observations of a
step has a decision pending, the others have not. What all environments share:

- Observation, float32[4]: the action before, the error now, the action and the error before that
  (zeros at first). The error is ``scale * (max(RTT / base RTT - offset, 0) * sqrt(rate / line
  rate) - target)``, limited to plus and minus a million: negative where the flow may send faster.
  Of a lost probe only how long it was under way at least is known: that is its RTT, and the error
  before scaling is 1 at least. ``Step.decisions.probe_lost`` and ``info["probe_lost"]`` tell it.
  Model files have other features (``docs/model.md``): limited to one, in integers, oldest first.
- Action, float32[1] in [-1, 1]: u multiplies the rate by 1 + 0.2u, or by 1 / (1 - 0.2u) where u is
  negative.
- Reward: minus the square of the error with a scale of 1 (Analytic Deterministic Policy Gradient
  with Application to Datacenter Congestion Control, section 5.1), for the decision before.

:class:`VectorFlows` holds any number of simulations and has arrays of all pending decisions, for
training; :func:`parallel_env` and :func:`aec_env` are PettingZoo environments of one simulation.
"""

from thalweg.environments.pettingzoo import AECFlows, ParallelFlows, aec_env, parallel_env
from thalweg.environments.vector import Objective, Step, VectorFlows

__all__ = [
    "AECFlows",
    "Objective",
    "ParallelFlows",
    "Step",
    "VectorFlows",
    "aec_env",
    "parallel_env",
]
