"""
Every figure of the README comes from here. Each module is a command (`python -m bench.engine`);
`bench.all` runs them all.
"""
