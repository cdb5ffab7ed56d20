"""Take Forebay's fixtures: a driver log for each test, and receivers on it."""

pytest_plugins = ["forebay.testing.fixtures"]
