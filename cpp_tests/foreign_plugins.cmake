# Filled when examples/foreign_plugin is there.
