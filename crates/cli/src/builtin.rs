//! The model in the program itself.

use paceline_checkpoint::ModelFolder;

use crate::failure::Failure;

#[cfg(feature = "tiny")]
macro_rules! files {
    ($folder:literal: $($name:literal),+) => {
        [$(($name, &include_bytes!(concat!("../../../assets/", $folder, "/", $name))[..])),+]
    };
}

/// The built-in tiny Gemma 4.
#[cfg(feature = "tiny")]
pub(crate) fn tiny() -> Result<ModelFolder, Failure> {
    let files = files!(
        "tiny-gemma4": "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja"
    );
    Ok(ModelFolder::from_files("(built-in tiny-gemma4)", files)?)
}

/// Its assistant.
#[cfg(feature = "tiny")]
pub(crate) fn tiny_assistant() -> Result<ModelFolder, Failure> {
    let files = files!("tiny-gemma4-assistant": "config.json", "generation_config.json", "model.safetensors");
    Ok(ModelFolder::from_files("(built-in tiny-gemma4-assistant)", files)?)
}

/// Its DFlash drafter.
#[cfg(feature = "tiny")]
pub(crate) fn tiny_dflash() -> Result<ModelFolder, Failure> {
    let files = files!("tiny-gemma4-dflash": "config.json", "model.safetensors");
    Ok(ModelFolder::from_files("(built-in tiny-gemma4-dflash)", files)?)
}

/// There is none in this build.
#[cfg(not(feature = "tiny"))]
pub(crate) fn tiny() -> Result<ModelFolder, Failure> {
    Err(Failure::bad_input(
        "no MODEL is given, and this program was built without the built-in one; give the folder of a model",
    ))
}

/// There is none in this build.
#[cfg(not(feature = "tiny"))]
pub(crate) fn tiny_assistant() -> Result<ModelFolder, Failure> {
    Err(Failure::bad_input(
        "--draft tiny: this program was built without the built-in models; give the folder of an assistant",
    ))
}

/// There is none in this build.
#[cfg(not(feature = "tiny"))]
pub(crate) fn tiny_dflash() -> Result<ModelFolder, Failure> {
    Err(Failure::bad_input(
        "--draft tiny-dflash: this program was built without the built-in models; give the folder of a drafter",
    ))
}
