"""Programs that use Fairlead for something real."""
