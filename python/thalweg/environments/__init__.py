# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Environments for reinforcement learning, with the interfaces of Gymnasium and PettingZoo.

An agent is a flow. It decides whenever a round-trip probe is answered or known to be lost, so
agents act asynchronously: those in the observations of a step have a decision pending, the others
have none. ``Step.decisions.probe_lost`` and ``info["probe_lost"]`` tell lost probes. Common to all
environments:

- Observation, float32[features.size], each number in [-1, 1]: the features of the last decisions, the
  oldest first, as :mod:`thalweg.features` defines them for training and ``docs/reference/model.md`` for model
  files, in the same order and with the same sign and limits (model files round to 15 bits). Unless
  told otherwise: action and error of two decisions, with offset 1 and target 0.05.
- Action, float32[1] in [-1, 1]: u multiplies the rate by 1 + 0.2u, or by 1 / (1 - 0.2u) where u is
  negative.
- Reward: minus the square of the target's distance from the signal (Analytic Deterministic Policy
  Gradient with Application to Datacenter Congestion Control, section 5.1), for the decision before.
  For a lost probe the RTT is the time until its loss was known, and the distance at least 1.
- Flows begin at the line rate unless ``initial`` says otherwise; :class:`OneFlow` at a tenth of it.

:class:`VectorFlows` holds any number of simulations and has arrays of all pending decisions, for
training; :func:`parallel_env` and :func:`aec_env` are PettingZoo environments of one simulation.
:class:`OneFlow`, ``gymnasium.make("thalweg/OneFlow-v0")`` once this module is imported, has one
agent among flows of a known controller.
"""

try:
    from thalweg.environments.one import OneFlow
    from thalweg.environments.pettingzoo import AECFlows, ParallelFlows, aec_env, parallel_env
    from thalweg.environments.vector import FEATURES, Step, VectorFlows
except ModuleNotFoundError as missing:
    if missing.name not in ("gymnasium", "pettingzoo"):
        raise
    raise ModuleNotFoundError(
        'the environments need Gymnasium and PettingZoo: pip install "thalweg[environments]"',
        name=missing.name,
    ) from None

__all__ = [
    "FEATURES",
    "AECFlows",
    "OneFlow",
    "ParallelFlows",
    "Step",
    "VectorFlows",
    "aec_env",
    "parallel_env",
]
