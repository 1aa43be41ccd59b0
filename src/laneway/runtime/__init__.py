"""An application's state in a process: tasks, push, cluster and gateway use it."""
