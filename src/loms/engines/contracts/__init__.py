"""What each release of an engine exposes (``<engine>.yaml``), and what becomes of it over upgrades."""
