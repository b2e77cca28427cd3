"""LOMS watches large-language-model serving: it collects, notices, explains and acts."""

__version__ = "0.1.0"
