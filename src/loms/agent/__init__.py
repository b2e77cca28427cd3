"""Composition root of the agent: discovery, scraping, translation and probing, wired together."""
