"""The Python interface: `import phiseg` offers what is defined here; see `phiseg/__init__.py` for the list."""
