"""
The dashboard: pages about a namespace, rendered here, and live while somebody looks at them.

`pages/` decides what is on a page, `templates/` how it looks, `collector` how it stays live.
"""
