//! Every script against a plain model of what it keeps: any order of calls by three clients, with expiry, repeated and lost
//! calls, dead tokens, keys deleted by hand and keys of other types.

mod state;
mod table;
mod tables;
mod tables_model;
mod tables_ops;
mod tables_seen;
mod turns;
mod words;
mod words_model;
mod words_ops;
mod words_seen;
mod world;
