"""What an application has in a process: tasks, push, cluster and gateway use it."""
