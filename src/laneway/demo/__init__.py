"""
`laneway demo`: a demonstration of half a minute. It prints only figures of its own run.
"""
