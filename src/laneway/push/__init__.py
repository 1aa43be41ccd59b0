"""
Push: a topic's messages are sent to its endpoint over HTTP, signed by Standard Webhooks.

Nothing here is imported unless it is used. Sending needs the extra: `pip install
"laneway[push]"`.
"""
