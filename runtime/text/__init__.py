"""Everything about text: tokenizer, chat template, incremental detokenizer, stop strings. Knows no HTTP, no sockets."""
