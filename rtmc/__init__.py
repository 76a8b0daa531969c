"""Step-level credit assignment for language-model agents."""
