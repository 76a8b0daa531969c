"""Tasks made from working packages: bugs spliced into the text, validated by the package's own tests."""
