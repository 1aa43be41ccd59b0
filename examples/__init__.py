"""Programs that use Laneway for something real."""
