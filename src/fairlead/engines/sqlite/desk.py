from fairlead.engines.sqlite.engine import Core
class SqliteEngine(Core): pass
