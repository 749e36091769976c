"""Gymnasium's control tasks, on which the baselines are known to work."""

import functools

import gymnasium
import numpy as np
from thalweg.train.rollouts import Rollouts
from thalweg.train.stochastic import Sampler, record_fields


class ControlTask:
    """Copies of a Gymnasium task, as a collector of rollouts. The baselines are known to work
    there, so a failure elsewhere means something. An episode's end, by whatever cause, is
    ``done``."""

    def __init__(self, name, copies, length, law, seed, reward_scale=1.0):
        self._tasks = gymnasium.vector.SyncVectorEnv(
            [functools.partial(gymnasium.make, name) for _ in range(copies)],
            autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        )
        self.size = int(np.prod(self._tasks.single_observation_space.shape))
        self._length, self._law, self._scale = length, law, reward_scale
        self._sampler = Sampler(seed)
        self._observation = self._tasks.reset(seed=seed)[0]
        self._reward = self._done = np.zeros(copies)
        self._running = np.zeros(copies)
        #: Undiscounted returns of the episodes that ended, in order, unscaled.
        self.returns = []

    def collect(self, policy):
        """The next ``length`` decisions of each copy."""
        self._sampler.load(policy)
        copies = np.arange(self._tasks.num_envs)
        fields = record_fields(self.size, self._law)
        rollouts = Rollouts.empty(len(copies), self._length, fields)
        for _ in range(self._length):
            observation = self._observation.reshape(len(copies), -1).astype(np.float32)
            action, log_prob, value = self._sampler.draw(observation)
            rollouts.append(
                copies,
                observation=observation,
                action=action,
                log_prob=log_prob,
                value=value,
                reward=self._reward * self._scale,
                done=self._done,
            )
            space = self._tasks.single_action_space
            if isinstance(space, gymnasium.spaces.Discrete):
                step = action[:, 0].astype(np.int64)
            else:
                step = np.clip(action, -1, 1) * space.high  # the tasks here are symmetric
            self._observation, self._reward, ended, cut, _ = self._tasks.step(step)
            self._done = (ended | cut).astype(np.float64)
            self._running += self._reward
            for copy in np.flatnonzero(self._done):
                self.returns.append(float(self._running[copy]))
                self._running[copy] = 0
        return rollouts

    def close(self):
        self._tasks.close()
