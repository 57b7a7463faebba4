//! The directory of drawings. Each drawing of a command has its own name and replaces a file of an earlier command.

use std::collections::BTreeSet;
use std::path::Path;

use anabranch_experiments::plots::Drawing;

use crate::capture::qlog::file_part;
use crate::errors::Failure;

/// The directory for the drawings of one command.
pub(super) struct Folder<'a> {
    path: &'a Path,
    /// The names of the drawings so far.
    taken: BTreeSet<String>,
}

impl<'a> Folder<'a> {
    /// Creates the directory and checks that it is writable, before the runs start.
    pub(super) fn prepare(path: &'a Path) -> Result<Self, Failure> {
        let not_made = |error: std::io::Error| {
            let failure = Failure::file("create", path, &error);
            if path.is_file() {
                failure.hint("name a directory for the drawings, not a file")
            } else {
                failure
            }
        };
        std::fs::create_dir_all(path).map_err(not_made)?;
        let probe = tempfile::tempfile_in(path).map(drop);
        probe.map_err(|error| Failure::file("write into", path, &error))?;
        Ok(Self { path, taken: BTreeSet::new() })
    }

    pub(super) fn save_all(&mut self, drawings: Vec<Drawing>) -> Result<(), Failure> {
        drawings.into_iter().try_for_each(|drawing| self.save(drawing))
    }

    fn save(&mut self, Drawing { scenario, what, svg }: Drawing) -> Result<(), Failure> {
        let path = self.path.join(format!("{}.svg", self.free_name(&scenario, &what)));
        let text = svg.map_err(|error| Failure::local(format!("cannot draw {}: {error}", path.display())))?;
        std::fs::write(&path, text).map_err(|error| Failure::file("write", &path, &error))
    }

    /// A name that no other drawing has: names of scenarios and flows may differ only in case or punctuation.
    fn free_name(&mut self, scenario: &str, what: &str) -> String {
        let name = file_part(&format!("{scenario} {what}"));
        let others = (2..).map(|number| format!("{name}-{number}"));
        let mut names = std::iter::once(name.clone()).chain(others);
        names.find(|name| self.taken.insert(name.clone())).unwrap_or(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_takes_no_drawings_is_told_before_anything_runs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let told = |path: &Path| Folder::prepare(path).err().unwrap();
        assert!(told(&file.join("drawings")).message.starts_with("cannot create "));
        assert!(told(&file).hint.unwrap().contains("not a file"));
        assert!(told(Path::new("/proc/self")).message.starts_with("cannot write into /proc/self"));
        assert!(Folder::prepare(&folder.path().join("new/drawings")).is_ok());
        assert!(folder.path().join("new/drawings").read_dir().unwrap().next().is_none());
    }

    #[test]
    fn no_drawing_of_a_command_takes_the_place_of_another_or_leaves_the_directory() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("drawings");
        for _ in 0..2 {
            let mut folder = Folder::prepare(&path).unwrap();
            for (scenario, what) in [("x", "flow.M"), ("x", "flow.m"), ("X", "flow m"), ("../../up", "jain")]
            {
                let (scenario, what) = (scenario.to_owned(), what.to_owned());
                folder.save(Drawing { scenario, what, svg: Ok(String::new()) }).unwrap();
            }
        }
        let mut names: Vec<_> = path.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["up-jain.svg", "x-flow-m-2.svg", "x-flow-m-3.svg", "x-flow-m.svg"]);
        assert_eq!(outer.path().read_dir().unwrap().count(), 1);
    }
}
