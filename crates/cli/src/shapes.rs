//! Configs of published sizes by name, for made-up weights and for a look at what a size needs.

use clap::builder::PossibleValuesParser;
use paceline_checkpoint::ModelFolder;

use crate::failure::Failure;

macro_rules! shapes {
    ($($name:literal),+) => {
        /// Each name with its config.
        const SHAPES: &[(&str, &[u8])] =
            &[$(($name, include_bytes!(concat!("../../../assets/shapes/", $name, ".json")))),+];
    };
}

shapes!(
    "gemma4-e2b",
    "gemma4-e4b",
    "gemma4-12b",
    "gemma4-26b-a4b",
    "gemma4-31b",
    "gemma4-e2b-assistant",
    "gemma4-e4b-assistant",
    "gemma4-12b-assistant",
    "gemma4-26b-a4b-assistant",
    "gemma4-31b-assistant",
    "gemma4-26b-a4b-dflash",
    "gemma4-31b-dflash",
    "bench-300m",
    "bench-300m-assistant",
    "bench-300m-dflash"
);

/// Parses a name; help and errors list them all.
pub(crate) fn parser() -> PossibleValuesParser {
    PossibleValuesParser::new(SHAPES.iter().map(|(name, _)| *name))
}

/// A folder with the config of a shape and nothing else; `None` for a name that there is not.
pub(crate) fn open(name: &str) -> Option<Result<ModelFolder, Failure>> {
    let &(name, config) = SHAPES.iter().find(|(known, _)| *known == name)?;
    Some(ModelFolder::from_files(name, [("config.json", config)]).map_err(Failure::from))
}

#[cfg(test)]
mod tests {
    use paceline_models::{AssistantConfig, DFlashConfig};

    use super::*;

    #[test]
    fn shapes_have_the_published_sizes() {
        // Text parameters, in thousands; what a decoded token reads.
        let published = [
            ("gemma4-e2b", 4_628_569, 2_279_768),
            ("gemma4-e4b", 7_463_013, 4_644_451),
            ("gemma4-12b", 11_907_350, 11_907_350),
            ("gemma4-26b-a4b", 25_233_141, 3_822_530),
            ("gemma4-31b", 30_697_345, 30_697_345),
            ("bench-300m", 436_298, 302_082),
        ];
        for (name, all, read) in published {
            let folder = open(name).unwrap().unwrap();
            let description = paceline_models::describe(folder.config()).unwrap();
            let found = (description.total_parameters() / 1000, description.read_parameters() / 1000);
            assert_eq!(found, (all, read), "{name}");
        }
    }

    #[test]
    fn each_assistant_fits_its_target() {
        for (name, _) in SHAPES.iter().filter(|(name, _)| name.ends_with("-assistant")) {
            let assistant = open(name).unwrap().unwrap();
            let target = open(name.trim_end_matches("-assistant")).unwrap().unwrap();
            AssistantConfig::parse(assistant.config()).unwrap();
            let of = |folder: &ModelFolder, field: &str| {
                folder.config().text().unwrap().required_usize(field, 1..=1 << 20).unwrap()
            };
            for field in
                ["vocab_size", "num_key_value_heads", "head_dim", "global_head_dim", "sliding_window"]
            {
                assert_eq!(of(&assistant, field), of(&target, field), "{name}: {field}");
            }
            let backbone =
                assistant.config().top().required_usize("backbone_hidden_size", 1..=1 << 20).unwrap();
            assert_eq!(backbone, of(&target, "hidden_size"), "{name}");
        }
    }

    #[test]
    fn each_dflash_drafter_fits_its_target() {
        let names = SHAPES.iter().filter(|(name, _)| name.ends_with("-dflash"));
        for (name, _) in names.clone() {
            let drafter = open(name).unwrap().unwrap();
            let target = open(name.trim_end_matches("-dflash")).unwrap().unwrap();
            let description = paceline_models::describe(target.config()).unwrap();
            let config = DFlashConfig::parse(drafter.config()).unwrap();
            assert_eq!(config.fit(drafter.config(), &description).unwrap().len(), 6, "{name}");
        }
        assert_eq!(names.count(), 3);
    }

    #[test]
    fn an_unknown_name_is_none() {
        assert!(open("gemma9").is_none());
    }
}
