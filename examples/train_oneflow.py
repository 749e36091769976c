# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Trains one flow to share a link with flows of Swift: PPO of skrl on thalweg/OneFlow-v0.

pip install ".[environments]" "skrl[jax]"
python examples/train_oneflow.py    # prints reward and rate of random actions and of what was learned
"""

import argparse
import logging

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from skrl.agents.jax.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.jax import wrap_env
from skrl.memories.jax import RandomMemory
from skrl.models.jax import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.jax import SequentialTrainer, SequentialTrainerCfg
from skrl.utils import set_seed

ENVIRONMENT = "thalweg.environments:thalweg/OneFlow-v0"


class Policy(GaussianMixin, Model):
    """The mean of an action; its spread is learned, too."""

    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, clip_actions=True, reduction="sum")

    @nn.compact
    def __call__(self, inputs, role):
        x = nn.tanh(nn.Dense(32)(inputs["observations"]))
        spread = self.param("log_std", lambda _: jnp.full(self.num_actions, -0.5))
        return nn.tanh(nn.Dense(self.num_actions)(x)), {"log_std": spread}


class Value(DeterministicMixin, Model):
    """The discounted reward that follows an observation."""

    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)

    @nn.compact
    def __call__(self, inputs, role):
        return nn.Dense(1)(nn.tanh(nn.Dense(32)(inputs["observations"]))), {}


def train(steps: int, seed: int) -> Policy:
    """PPO over so many steps of 16 environments."""
    logging.getLogger("skrl").setLevel(logging.ERROR)
    set_seed(seed)
    environment = wrap_env(gymnasium.make_vec(ENVIRONMENT, num_envs=16, vectorization_mode="sync"))
    spaces = {
        "observation_space": environment.observation_space,
        "action_space": environment.action_space,
    }
    models = {"policy": Policy(**spaces), "value": Value(**spaces)}
    for role, model in models.items():
        model.init_state_dict(role=role)
    settings = PPO_CFG(
        rollouts=32,
        learning_epochs=4,
        mini_batches=2,
        learning_rate=3e-3,
        discount_factor=0.98,
        time_limit_bootstrap=True,
    )
    settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
    memory = RandomMemory(memory_size=settings.rollouts, num_envs=environment.num_envs)
    agent = PPO(models=models, memory=memory, cfg=settings, **spaces)
    trainer = SequentialTrainerCfg(
        timesteps=steps, headless=True, disable_progressbar=None, close_environment_at_exit=False
    )
    SequentialTrainer(env=environment, agents=agent, cfg=trainer).train()
    return models["policy"]


def judge(act, seed: int) -> tuple[float, float]:
    """Mean reward of a decision, and the flow's rate in Gbit/s, in one simulation."""
    environment = gymnasium.make(ENVIRONMENT)
    observation, _ = environment.reset(seed=seed)
    rewards, ended = [], False
    while not ended:
        observation, reward, terminated, truncated, _ = environment.step(act(observation))
        rewards.append(reward)
        ended = terminated or truncated
    return float(np.mean(rewards)), float(environment.unwrapped.outcome().flow_gbps[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=512, help="steps of each environment (512)")
    parser.add_argument("--seed", type=int, default=1, help="of training (1)")
    given = parser.parse_args()
    policy = train(given.steps, given.seed)

    mean = jax.jit(
        lambda seen: policy.apply(policy.state_dict.params, {"observations": seen}, "")[0]
    )
    generator = np.random.default_rng(0)
    for name, act in (("random", lambda _: generator.uniform(-1, 1, 1)), ("learned", mean)):
        reward, rate = np.mean([judge(act, seed) for seed in (101, 102, 103)], axis=0)
        print(f"{name:7}  reward {reward:8.4f}  rate {rate:5.1f} Gbit/s")


if __name__ == "__main__":
    main()
