"""As a user's own conftest.py would say it."""

pytest_plugins = ["env.fault_fixtures"]
