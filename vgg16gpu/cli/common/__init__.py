"""What several subcommands share: options, tables, messages."""
