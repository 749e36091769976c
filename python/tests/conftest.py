"""Common parts of all Python tests."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than some ten seconds")
    config.addinivalue_line("markers", "generator: writes files of the repository, tests nothing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves generators out without THALWEG_GENERATE: they are no tests that were skipped."""
    if os.environ.get("THALWEG_GENERATE"):
        return
    generators = [item for item in items if item.get_closest_marker("generator")]
    items[:] = [item for item in items if item not in generators]
    config.hook.pytest_deselected(items=generators)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails where tests must run and one was skipped, unless no test of its kind can run here."""
    if not os.environ.get("THALWEG_REQUIRE_PRIVILEGED"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = [report.longrepr for report in reporter.stats.get("skipped", [])]
    missed = [f"{file}:{line}: {why}" for file, line, why in skipped if "not here: " not in why]
    if missed:
        reporter.write_line("\nthese tests must run here:\n" + "\n".join(missed), red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
