"""Training of learned rate controllers: one file per algorithm.

Each runs as a module, for example ``python -m thalweg.train.adpg --help``; ``docs/training.md``
says what to do with them.
"""
