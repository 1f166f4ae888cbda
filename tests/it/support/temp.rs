//! A folder for one test.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// Removed on drop.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> TempDir {
        let path = env::temp_dir().join(format!("leasehold-test-{}", Uuid::new_v4().simple()));
        fs::create_dir(&path).expect("a temp folder");
        TempDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
