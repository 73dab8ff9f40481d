"""Tables and figures. They read what was stored, never a run in memory. Only this package draws."""
