//! Every script against a plain model of what it keeps: any order of calls by three clients, with expiry, repeated and lost
//! calls, dead tokens, keys deleted by hand and keys of other types.

mod state;
mod tables;
mod tables_model;
mod tables_ops;
mod turns;
mod words;
mod words_model;
mod words_ops;
mod world;
