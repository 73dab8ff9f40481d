"""Tables in the terminal, figures and web pages. They read stored runs, never one in memory. Only this room draws."""
