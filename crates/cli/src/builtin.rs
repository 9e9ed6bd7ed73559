//! The model in the program itself.

use paceline_checkpoint::ModelFolder;

use crate::failure::Failure;

/// The built-in tiny Gemma 4.
#[cfg(feature = "tiny")]
pub(crate) fn tiny() -> Result<ModelFolder, Failure> {
    macro_rules! file {
        ($name:literal) => {
            ($name, &include_bytes!(concat!("../../../assets/tiny-gemma4/", $name))[..])
        };
    }
    let files = [
        file!("config.json"),
        file!("generation_config.json"),
        file!("model.safetensors"),
        file!("tokenizer.json"),
        file!("tokenizer_config.json"),
        file!("chat_template.jinja"),
    ];
    Ok(ModelFolder::from_files("(built-in tiny-gemma4)", files)?)
}

/// There is none in this build.
#[cfg(not(feature = "tiny"))]
pub(crate) fn tiny() -> Result<ModelFolder, Failure> {
    Err(Failure::bad_input(
        "no MODEL is given, and this program was built without the built-in one; give the folder of a model",
    ))
}
