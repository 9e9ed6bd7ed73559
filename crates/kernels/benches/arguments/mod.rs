//! What stands behind `cargo bench ... --`: numbers by their names, and a file for the figures.

/// Reads numbers into their places; what is left out stays. Gives the file that `--json` names.
pub(crate) fn read(numbers: &mut [(&str, &mut usize)]) -> Option<String> {
    let mut json = None;
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match numbers.iter_mut().find(|(name, _)| *name == word) {
            Some((_, number)) => {
                **number = value.parse().unwrap_or_else(|_| panic!("{word} {value}: not a number"));
            }
            None if word == "--json" => json = Some(value),
            None => panic!("{word}: not an option"),
        }
    }
    json
}

/// Writes figures, lines of an object, to the file.
pub(crate) fn write(file: Option<String>, json: &str) {
    if let Some(file) = file {
        std::fs::write(&file, json).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}
