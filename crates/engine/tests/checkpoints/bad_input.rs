//! Folders that do not fit, and requests to a model without a tokenizer.

use paceline::{Activation, Inexact, LoadError, Loader, ModelFolder, Refused, Request, Sizes, cpu_backend};
use paceline_testkit::paths::{asset, oracle};

use crate::setup::{open, sizes, tokens};

fn refusal(folder: &ModelFolder, drafter: Option<&ModelFolder>, sizes: Sizes) -> LoadError {
    let loader = Loader { folder, drafter, sizes, inexact: Inexact::Refuse, progress: &mut |_| {} };
    match loader.load(cpu_backend(Activation::Bf16).unwrap()) {
        Ok(_) => panic!("{} was loaded", folder.origin().display()),
        Err(error) => error,
    }
}

#[test]
fn drafters_and_models_that_do_not_fit_are_refused() {
    let tiny = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
    let assistant = ModelFolder::open(&asset("tiny-gemma4-assistant")).unwrap();
    let others = ModelFolder::open(&oracle("gemma4_e_assistant")).unwrap();
    let gemma3 = ModelFolder::open(&oracle("gemma3")).unwrap();
    let small = Sizes { max_drafts: 2, ..Sizes::single(64) };
    let message = refusal(&assistant, None, small).to_string();
    assert!(message.contains("assistant"), "{message}");
    for (model, drafter) in [(&tiny, &others), (&gemma3, &assistant), (&tiny, &tiny)] {
        let message = refusal(model, Some(drafter), small).to_string();
        assert!(message.contains("config.json"), "{message}");
    }
    let message = refusal(&tiny, None, Sizes::single(1 << 20)).to_string();
    assert!(message.contains("context is 1048576"), "{message}");
}

#[test]
fn a_folder_without_tokenizer_runs_and_makes_no_text() {
    let mut model = open(&oracle("gemma4_e"), None, sizes(64, 1, 64, 0), Activation::Bf16);
    assert!(model.tokenizer.is_none());
    let completion = model.engine.generate(Request::new(tokens(&[2, 105]), 5)).unwrap();
    assert_eq!((completion.token_ids.len(), completion.text), (5, None));
    let mut request = Request::new(tokens(&[2, 105]), 5);
    request.stop = vec!["a".into()];
    assert_eq!(model.engine.submit(request), Err(Refused::StopWithoutText));
}
