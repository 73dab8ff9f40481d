"""Many runs: carried out in parallel, compared, tuned, and the number of sources chosen."""
