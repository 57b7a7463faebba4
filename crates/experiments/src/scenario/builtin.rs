//! The scenarios that come with the program: the files of `scenarios/`, by name.

macro_rules! builtin {
    ($($name:literal),* $(,)?) => {
        /// Names and texts, in order of the names.
        pub const BUILTIN: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../../scenarios/", $name, ".toml")))),*];
    };
}

builtin![
    "auto-deep-queue",
    "auto-far",
    "auto-lossy",
    "auto-neighbour",
    "bench-fattree",
    "detectors",
    "detectors-reverse",
    "dumbbell",
    "mpmtp-fig6",
    "mpmtp-fig8",
    "mpmtp-fig9",
    "mpmtp-table2",
    "mtcp-fig11",
    "mtcp-fig12",
    "mtcp-fig3",
    "mtcp-fig4",
    "mtcp-fig5",
    "mtcp-fig8",
    "mtcp-fig9",
    "mtcp-table3",
    "mtcp-table5",
    "nsdi11-bcube-tp1",
    "nsdi11-bcube-tp2",
    "nsdi11-bcube-tp3",
    "nsdi11-fattree-tp1",
    "nsdi11-fattree-tp2",
    "nsdi11-fattree-tp3",
    "nsdi11-fig10a",
    "nsdi11-fig10b",
    "nsdi11-fig14",
    "nsdi11-fig15",
    "nsdi11-fig16",
    "nsdi11-fig17",
    "nsdi11-fig2",
    "nsdi11-fig2-alike",
    "nsdi11-fig3",
    "nsdi11-fig4",
    "nsdi11-fig5",
    "nsdi11-fig5-stays",
    "nsdi11-fig5-trap",
    "nsdi11-fig8",
    "nsdi11-fig9",
    "nsdi11-fig9-short",
    "nsdi11-wifi3g",
    "parking-lot",
    "psmc-fig3",
    "psmc-fig4",
    "psmc-fig5",
    "psmc-udp",
    "psmc-udp-failure",
    "redundant-stream",
    "relay-candidates",
    "safire-fig3",
    "safire-fig4",
    "safire-fig5",
    "safire-fig6",
    "schedulers",
    "sockets",
    "two-links",
];

#[cfg(test)]
mod tests {
    use super::BUILTIN;
    use crate::scenario::Scenario;

    #[test]
    fn every_scenario_that_comes_along_can_be_built_and_is_called_as_its_file() {
        assert!(BUILTIN.is_sorted_by_key(|(name, _)| *name));
        for (name, text) in BUILTIN {
            let scenario = Scenario::parse(text, name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(scenario.name, *name);
            assert!(!scenario.about().is_empty(), "{name}");
        }
    }

    #[test]
    fn every_scenario_of_the_folder_comes_along() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
        let files = std::fs::read_dir(folder).expect("the folder is there");
        let toml = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
        assert_eq!(toml.filter(|name| name.ends_with(".toml")).count(), BUILTIN.len());
    }
}
