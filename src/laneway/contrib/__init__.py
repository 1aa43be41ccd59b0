"""
Integrations of other projects, over the public API alone.

Each module needs the package that it integrates; nothing of `laneway` imports them.
"""
