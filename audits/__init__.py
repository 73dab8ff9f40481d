"""What public code of other authors computes, beside what fedsoft computes from the same start and the same data."""
