"""What each route does, one module for each resource; `gateway.route_table` lists them."""
