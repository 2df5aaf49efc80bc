"""Terminal tables, texts and plots."""
