"""fixstar train, add, upgrade, drop, grow, slots, retire: the versions of a model."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

import fixstar
from fixstar.cli.app import (
    AsJson,
    BadImages,
    Device,
    LabelOption,
    Trust,
    WorkspacePath,
    key_value,
    option_of,
    verb,
)
from fixstar.cli.gallery import import_vectors
from fixstar.cli.next_steps import command_of, next_lines
from fixstar.cli.output import print_json, print_result, print_table, print_wrapped, say, visible
from fixstar.cli.rollout import print_check
from fixstar.durable import replace_json
from fixstar.errors import FixstarError, InputError, NextStep, plural
from fixstar.training.settings import BY_OPTIMIZER, FROZEN, Recipe, Settings, paper_recipe
from fixstar.trust import (
    ADDRESSES,
    import_path,
    is_trusted,
    module_of,
    remember,
    remembered,
    trusting,
)
from fixstar.versions import named_in_space
from fixstar.wording import percent
from fixstar.workspace.options import (
    FIRST_BACKBONE,
    FIRST_METHOD,
    HELD_OUT,
    UpgradeOptions,
    held_out_share,
)
from fixstar.workspace.registry import FIRST, Registry

if TYPE_CHECKING:
    from fixstar.data import ImageSet
    from fixstar.images import Preprocessing
    from fixstar.methods import Method
    from fixstar.texts import Prompts
    from fixstar.training import Version
    from fixstar.workspace import Check, Workspace

_ADAM_RATE, _ADAM_DECAY = BY_OPTIMIZER["adam"]
_ADAMW_DECAY = BY_OPTIMIZER["adamw"][1]
DataPath = Annotated[
    Path,
    typer.Argument(
        help="Labelled images: one folder per class, a CSV list (path,label), CIFAR, idx or Omniglot."
    ),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        help="An option of the method, such as hold=40; see docs/reference/methods.md. Repeatable.",
    ),
]
HoldOut = Annotated[
    float | None,
    option_of(UpgradeOptions, "hold_out", show_default=f"{HELD_OUT:g}; 0 if no images are kept"),
]


@dataclass
class ImageOptions:
    """How a model's images are prepared."""

    size: Annotated[
        str | None,
        typer.Option(
            help="Height and width of its images: 224, or 224x192. Your own models need it."
        ),
    ] = None
    mean: Annotated[
        str | None,
        typer.Option(
            help="Subtracted from pixels in 0..1, per channel.", show_default="0.485,0.456,0.406"
        ),
    ] = None
    std: Annotated[
        str | None,
        typer.Option(help="Pixels are then divided by this.", show_default="0.229,0.224,0.225"),
    ] = None
    fit: Annotated[str, typer.Option(help="Images of another shape: crop, squash or pad.")] = "crop"
    crop_fraction: Annotated[
        float, typer.Option(help="With crop: the share of the shorter side to keep, such as 0.875.")
    ] = 1.0
    interpolation: Annotated[str, typer.Option(help="nearest, bilinear, bicubic or lanczos.")] = (
        "bicubic"
    )

    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing from these options; None without a size."""
        from fixstar.images.preprocessing import Preprocessing

        if self.size is None:
            if self != ImageOptions():
                raise InputError(
                    "--mean, --std, --fit, --crop-fraction and --interpolation go with --size"
                )
            return None
        sides = self.size.lower().split("x")
        if not all(side.isdigit() for side in sides) or len(sides) not in (1, 2):
            raise InputError(
                f"--size must be a number of pixels such as 224, or height x width such as 224x192; got {self.size!r}"
            )
        means = _numbers("--mean", self.mean or "0.485,0.456,0.406")
        stds = _numbers("--std", self.std or "0.229,0.224,0.225")
        return Preprocessing(
            size=(int(sides[0]), int(sides[-1])),
            channels=len(means),
            mean=means,
            std=stds,
            fit=cast(Any, self.fit),
            crop_fraction=self.crop_fraction,
            interpolation=cast(Any, self.interpolation),
        )


@dataclass
class RecipeOptions:
    """Changes of a recipe."""

    optimizer: Annotated[
        str | None, option_of(Recipe, "optimizer", show_default=Recipe.optimizer)
    ] = None
    schedule: Annotated[str | None, option_of(Recipe, "schedule", show_default=Recipe.schedule)] = (
        None
    )
    warmup: Annotated[
        float | None, option_of(Recipe, "warmup", show_default=f"{Recipe.warmup:g}")
    ] = None
    weight_decay: Annotated[
        float | None,
        option_of(
            Recipe,
            "weight_decay",
            show_default=f"as in the method's paper; {_ADAM_DECAY:g} with adam, "
            f"{_ADAMW_DECAY:g} with adamw",
        ),
    ] = None
    decay_norms: Annotated[bool | None, option_of(Recipe, "decay_norms", show_default="yes")] = None
    clip: Annotated[float | None, option_of(Recipe, "clip", show_default="off")] = None
    backbone_rate: Annotated[
        float | None, option_of(Recipe, "backbone_rate", show_default=f"{Recipe.backbone_rate:g}")
    ] = None

    def changed(self, recipe: Recipe, epochs: int | None, **more: Any) -> Recipe:
        """A recipe with these options, and those in ``more`` that are not None. The recipe validates the values."""
        given = {**vars(self), **more}
        optimizer = given.pop("optimizer")
        if epochs is not None:
            recipe = recipe.shortened(epochs)
        if optimizer is not None:
            recipe = recipe.with_optimizer(optimizer)
        return dataclasses.replace(
            recipe, **{name: value for name, value in given.items() if value is not None}
        )


@verb(
    "fixstar train photos/2024 --workspace shop --backbone resnet18",
    "fixstar train cifar-100-binary -w run --backbone resnet32 --epochs 20",
    "fixstar train photos/2024 -w shop --method bct-vectors --old-vectors gallery.npz",
)
def train(
    data: DataPath,
    workspace: WorkspacePath = Path(),
    label: LabelOption = None,
    backbone: Annotated[
        str,
        typer.Option(
            help="See: fixstar backbones; efficientnet-lite0 is pre-trained, the others start from random weights. Or "
            "your own model: hf:NAME_OR_FOLDER, FILE.onnx, package.module:name."
        ),
    ] = FIRST_BACKBONE,
    frozen: Annotated[bool, option_of(Settings, "frozen", "--frozen")] = Settings.frozen,
    *,
    images: ImageOptions,
    method: Annotated[str, typer.Option(help="See: fixstar methods")] = FIRST_METHOD,
    option: MethodOption = None,
    capacity: Annotated[
        int, option_of(Settings, "capacity", show_default=f"{Settings.capacity:,}")
    ] = Settings.capacity,
    epochs: Annotated[
        int | None,
        option_of(
            Recipe, "epochs", show_default=f"as in the method's paper; {FROZEN.epochs} if frozen"
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        option_of(
            Recipe,
            "learning_rate",
            show_default=f"{Recipe.learning_rate:g}; {FROZEN.learning_rate:g} if frozen; "
            f"{_ADAM_RATE:g} with adam and adamw",
        ),
    ] = None,
    changes: RecipeOptions,
    batch_size: Annotated[int, option_of(Recipe, "batch_size")] = Recipe.batch_size,
    precision: Annotated[str, option_of(Recipe, "precision")] = Recipe.precision,
    old_vectors: Annotated[
        Path | None,
        typer.Option(
            help="Vectors of another system to stay compatible with: .npz with vectors and classes."
        ),
    ] = None,
    replay: Annotated[int, option_of(Settings, "replay_per_class")] = Settings.replay_per_class,
    hold_out: HoldOut = None,
    flip: Annotated[
        bool, typer.Option(help="Flip images left to right at random; turn off for text.")
    ] = True,
    seed: Annotated[int, option_of(Settings, "seed")] = Settings.seed,
    bad_images: BadImages = "refuse",
    trust: Trust = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train the first version, v1, on labelled images. The same command resumes after an interruption."""
    from fixstar.data import Augmentation, open_images
    from fixstar.methods import OldVectors, create_method

    space = fixstar.Workspace(workspace)
    _require_trust(workspace, backbone, trust)
    wanted = _method_options(option)
    if frozen and method in ("vega", "polaris"):
        wanted = {"rotated": False, **wanted}  # every rotation would need to be embedded too
    chosen = create_method(method, **wanted)
    recipe = changes.changed(
        FROZEN if frozen else paper_recipe(chosen.scenario),
        epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        precision=precision,
    )
    settings = Settings(
        backbone=backbone,
        capacity=capacity,
        preprocessing=images.preprocessing(),
        frozen=frozen,
        recipe=recipe,
        augmentation=Augmentation(flip=flip),
        replay_per_class=replay,
        bad_images=cast(Literal["refuse", "skip"], bad_images),
        seed=seed,
        device=device,
    )
    if not frozen:
        _lead_to_pretrained(backbone, workspace)
    stored = None
    if old_vectors is not None:
        stored = OldVectors.read(str(old_vectors))
    version = space.train(
        _announced(open_images(data, label=label)),
        settings,
        chosen,
        old_vectors=stored,
        hold_out=held_out_share(hold_out, keeps_images=replay > 0),
    )
    _print_version(version, space.path, following="fixstar index CATALOGUE", as_json=as_json)


@verb(
    "fixstar upgrade photos/2025 --workspace shop",
    "fixstar upgrade photos/all -w shop --replace resnet50 --epochs 60",
    "fixstar upgrade photos/2025 -w shop --try off --keep-images no",
)
def upgrade(
    data: DataPath,
    workspace: WorkspacePath = Path(),
    label: LabelOption = None,
    method: Annotated[str | None, option_of(UpgradeOptions, "method")] = None,
    option: MethodOption = None,
    start: Annotated[
        str | None, option_of(UpgradeOptions, "start", "--from", show_default="the newest")
    ] = UpgradeOptions.start,
    from_scratch: Annotated[
        bool, option_of(UpgradeOptions, "from_scratch", "--from-scratch")
    ] = UpgradeOptions.from_scratch,
    replace: Annotated[
        str | None,
        option_of(UpgradeOptions, "replace", also="--size, --mean and so on describe its images."),
    ] = UpgradeOptions.replace,
    backbone: Annotated[str | None, typer.Option(hidden=True)] = None,
    frozen: Annotated[
        bool | None, option_of(UpgradeOptions, "frozen", show_default="as before")
    ] = UpgradeOptions.frozen,
    *,
    images: ImageOptions,
    epochs: Annotated[
        int | None,
        option_of(
            Recipe,
            "epochs",
            also="vega trains an upgrade twice as long, unless you pass --option longer=1.",
        ),
    ] = None,
    learning_rate: Annotated[float | None, option_of(Recipe, "learning_rate")] = None,
    changes: RecipeOptions,
    seed: Annotated[int | None, option_of(UpgradeOptions, "seed")] = UpgradeOptions.seed,
    precision: Annotated[str | None, option_of(Recipe, "precision")] = None,
    keep_images: Annotated[str, option_of(UpgradeOptions, "keep_images")] = "yes",
    hold_out: HoldOut = None,
    select: Annotated[
        bool, option_of(UpgradeOptions, "select", "--select")
    ] = UpgradeOptions.select,
    trials: Annotated[
        str,
        typer.Option(
            "--try",
            help="Number of settings that short runs compare on held-out images first: auto (at most a third of the "
            "training time), a number, or off. Options that you set are not varied.",
        ),
    ] = "auto",
    bad_images: BadImages = "refuse",
    trust: Trust = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train the next version on new images so that it can search the old vectors. The same command resumes.

    Short runs compare a few settings first, and the best one is trained in full. Their results are printed.
    """
    from fixstar.data import open_images

    if backbone is not None:
        raise InputError(
            "an upgrade keeps the last version's network unless another one replaces it",
            NextStep("repeat", {"replace": backbone}, "in place of --backbone"),
        )
    space = fixstar.Workspace(workspace)
    if keep_images.lower() not in ("yes", "no"):
        raise InputError(f"--keep-images must be yes or no, got {keep_images!r}")
    _require_trust(workspace, replace or "", trust)
    settings = space.settings(start)
    keep = keep_images.lower() == "yes"
    recipe = changes.changed(settings.recipe, epochs, precision=precision)
    images_kept = select or (keep and settings.replay_per_class > 0)
    options = UpgradeOptions(
        recipe=None if recipe == settings.recipe else recipe,
        learning_rate=learning_rate,
        method=_changed_method(space, start, name=method, option=option),
        start=start,
        seed=seed,
        device=device,
        bad_images=cast(Literal["refuse", "skip"], bad_images),
        from_scratch=from_scratch,
        replace=replace,
        preprocessing=images.preprocessing(),
        frozen=frozen,
        keep_images=keep,
        hold_out=held_out_share(hold_out, keeps_images=images_kept),
        select=select,
    )
    wanted = _parsed_trials(trials)
    _say_how_long(options.method or space.method(start), recipe.epochs)
    version = space.upgrade(
        _announced(open_images(data, label=label)), options, trials=wanted, say=say
    )
    found = None
    if version.encoder.about.get("trials"):
        found = _checked_at_once(space, version)
    if not as_json:
        _print_trials(version)
    if as_json or found is None:
        following = f"fixstar check {version.name}"
        _print_version(version, space.path, following=following, as_json=as_json, check=found)
        return
    print(f"{version.name} is in {space.registry.directory(version.name)}. On its held-out images:")
    print_check(found, workspace, {})


def _say_how_long(method: Method, epochs: int) -> None:
    """Announce that the upgrade's method trains for a different number of epochs than the recipe."""
    longer = cast(float, method.options.get("longer", 1.0))
    if longer != 1:
        say(
            f"{plural(max(1, round(epochs * longer)), 'epoch')}: {method.name} trains an upgrade {longer:g} times as "
            f"long as the recipe's {epochs:,} (--option longer=1 for these)"
        )


def _checked_at_once(space: Workspace, version: Version) -> Check | None:
    """The check on held-out images, which exist if trials were run; None if the gallery cannot be opened."""
    try:
        with space:
            return space.check(version.name, progress=False)
    except FixstarError as error:
        say(f"{version.name} is trained and not yet checked: {error}")
        return None


def _parsed_trials(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if text == "off":
        return 0
    if text.isascii() and text.isdigit():
        return int(text)
    raise InputError(
        f"--try must be auto, off, or the number of settings to compare, 2 or more; got {text!r}"
    )


def _print_trials(version: Version) -> None:
    tried = version.encoder.about.get("trials")
    if not tried:
        return
    galleries = list(tried[0]["galleries"])
    heads = []
    for name in galleries:
        heads.append(f"{name}\nalone")
        heads.append(f"{version.name}\non {name}")
    heads.append(f"{version.name}\nalone")
    rows = []
    for one in tried:
        cells = [one["setting"]]
        for name in galleries:
            new, old = one["galleries"][name]
            cells.append(percent(old))
            cells.append(percent(new))
        cells.append(percent(one["self_test"]))
        cells.append("chosen" if one["chosen"] else "")
        rows.append(tuple(cells))
    print_table(("tried", *heads, ""), rows, right=heads)
    print_wrapped(
        f"On held-out images, after {tried[0]['epochs']} epochs each. Settings that beat the old versions on their own "
        f"vectors come first, then the highest mean of {version.name} on old vectors and {version.name} alone"
    )


@dataclass
class TextOptions:
    """Preparation of a model's texts, and access to a server."""

    tokenizer: Annotated[
        Path | None,
        typer.Option(help="For an ONNX text model: its tokenizer.json.", rich_help_panel="Texts"),
    ] = None
    pooling: Annotated[
        str | None,
        typer.Option(
            help="How token states become one vector: mean, cls or last.", show_default="its own"
        ),
    ] = None
    item_prompt: Annotated[
        str | None, typer.Option(help="Prefix for stored texts, such as 'passage: '.")
    ] = None
    query_prompt: Annotated[
        str | None, typer.Option(help="Prefix for queries, such as 'query: '.")
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key-variable",
            help="The environment variable of a server's key.",
            show_default="see docs",
        ),
    ] = None
    price: Annotated[float | None, typer.Option(help="Price of a server per million tokens.")] = (
        None
    )
    per_minute: Annotated[
        float | None, typer.Option(help="Maximum number of requests to a server per minute.")
    ] = None

    def prompts(self) -> Prompts | None:
        """The prefixes of texts; None if none is given."""
        from fixstar.texts import Prompts

        if self.item_prompt is None and self.query_prompt is None:
            return None
        return Prompts(item=self.item_prompt or "", query=self.query_prompt or "")

    def options(self) -> dict[str, Any]:
        """The other options, for ``Encoder.wrap``."""
        given = {
            name: getattr(self, name)
            for name in ("tokenizer", "pooling", "key", "price", "per_minute")
        }
        return {name: value for name, value in given.items() if value is not None}


@verb(
    "fixstar add efficientnet-lite0 -w shop",
    "fixstar add model.onnx -w shop --size 224 --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5",
    "fixstar add hf:facebook/dinov2-small -w shop",
    "fixstar add st:./all-MiniLM-L6-v2 -w notes",
    "fixstar add 'https://api.openai.com/v1/embeddings?model=text-embedding-3-small' -w notes --price 0.02",
    "fixstar add shop.models:build --trust shop.models --weights model.safetensors -w shop --size 224",
    "fixstar add better.onnx -w shop --size 224 --compatible-with v1",
    "fixstar add old.npz --as old-system -w shop",
)
def add(
    model: Annotated[
        str,
        typer.Argument(
            help="efficientnet-lite0, a small pre-trained network for photos (needs the extra encoder); an ONNX file, "
            "hf:NAME_OR_FOLDER (transformers), open_clip:MODEL/WEIGHTS, st:NAME_OR_FOLDER (sentence-transformers), "
            "https://HOST/v1/embeddings?model=NAME (a server that embeds texts), or package.module:name, which makes a "
            "torch module. Or a file of vectors (.npz, .npy, .parquet), which has no encoder: see --as."
        ),
    ],
    workspace: WorkspacePath = Path(),
    *,
    images: ImageOptions,
    texts: TextOptions,
    output: Annotated[
        str | None, typer.Option(help="Which of several ONNX outputs is the feature.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="A safetensors file with the weights of package.module:name."),
    ] = None,
    argument: Annotated[
        list[str] | None,
        typer.Option("--argument", help="KEY=VALUE for package.module:name. Repeatable."),
    ] = None,
    compatible_with: Annotated[
        str | None,
        typer.Option(help="The version whose vectors it was trained to search, such as v1."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--as", help="For vectors: the name of the system that made them.")
    ] = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Add a model trained elsewhere as the next version; or add stored vectors alone, under their own name."""
    from fixstar.models.backbones import PRETRAINED
    from fixstar.workspace.training import after_adding

    if Path(model).suffix.lower() in (".npy", ".npz", ".parquet", ".jsonl"):
        if name is None:
            raise InputError(
                f"{model} holds vectors, not a model. Vectors need their own name in the gallery",
                NextStep("import-vectors", {"file": model, "name": ...}),
            )
        if images.size or output or weights or argument:
            raise InputError(
                f"{model} holds vectors: there is no model that --size, --output, --weights or --argument apply to"
            )
        if compatible_with:
            name = named_in_space(name, compatible_with)
        import_vectors(model, name, workspace, as_json=as_json)
        return
    if name is not None:
        raise InputError(
            f"--as is for vectors, but {model} is a model; versions are numbered automatically"
        )
    prepared = images.preprocessing() or texts.prompts()
    says_it = (
        model.startswith(("hf:", "open_clip:", "st:", *ADDRESSES)) or texts.tokenizer is not None
    )
    unprepared = prepared is None and model not in PRETRAINED and not says_it
    if unprepared and ":" not in model and not Path(model).exists():
        raise InputError(
            f"there is no file {model}. A model is {', '.join(PRETRAINED)}, FILE.onnx, hf:NAME_OR_FOLDER, "
            "open_clip:MODEL/WEIGHTS, st:NAME_OR_FOLDER, the address of a server, or package.module:name"
        )
    if unprepared:
        raise InputError(
            f"{model} does not say how its images are prepared, and vectors are meaningless without that: give --size, "
            "and --mean and --std if they are not ImageNet's; or --tokenizer if it reads texts"
        )
    space = fixstar.Workspace(workspace)
    _require_trust(workspace, model, trust)
    made_from = dict(key_value(text, "--argument", "depth=50") for text in argument or [])
    version = space.add_version(
        model,
        prepared,
        compatible_with=compatible_with,
        arguments=made_from,
        weights=weights,
        output=output,
        **texts.options(),
    )
    encoder = space.encoder(version)
    width = encoder.feature_dim
    if as_json:
        print_json(
            {
                "version": version,
                "width": width,
                "compatible_with": compatible_with,
                "reads": encoder.reads,
            }
        )
        return
    print(f"{version} added: {model}, vectors of {width} components, reads {encoder.reads}")
    print("\n".join(next_lines([after_adding(space.registry, version)], workspace)))


def _require_trust(workspace: Path, model: str, trust: list[str] | None) -> None:
    """Ask once whether the code of a version may run, now and in later uses of the workspace."""
    for module in trust or ():
        remember(workspace, module)
    if Path(model).exists():
        return
    code = import_path(model, {})
    if code is None:
        return
    module = module_of(code)
    with trusting(*remembered(workspace)):
        if is_trusted(module):
            return
    question = (
        f"{code} is code of {module}. It runs now, and whenever {workspace} is used. Trust it?"
    )
    known = "if you know this code"
    if module.startswith(ADDRESSES):
        question = f"{module} gets the texts and queries of {workspace}, and the key. Trust it?"
        known = "if you know this server"
    if not sys.stdin.isatty():
        raise InputError(question, NextStep("repeat", {"trust": module}, known))
    typer.confirm(question, abort=True, err=True)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{option} must be one number per channel, such as 0.5,0.5,0.5; got {text!r}"
        ) from None


def _method_options(given: list[str] | None) -> dict[str, Any]:
    return dict(key_value(text, "--option", "hold=40") for text in given or [])


def _changed_method(
    space: Workspace, start: str | None, *, name: str | None, option: list[str] | None
) -> Method | None:
    """The requested method, or the last version's with changed options; None without a change."""
    from fixstar.methods import create_method

    if name is None and not option:
        return None
    if name is not None:
        return create_method(name, **_method_options(option))
    last = space.method(start)
    return create_method(last.name, **{**last.options, **_method_options(option)})


def _lead_to_pretrained(backbone: str, workspace: Path) -> None:
    """Before training from random weights, point to pre-trained networks, which suit photos better."""
    from fixstar.models import backbone_names
    from fixstar.models.backbones.pretrained import EXTRA, PRETRAINED, at_hand

    if backbone not in backbone_names():
        return
    print(
        f"{backbone} starts from random weights. That pays for drawings and unusual images",
        file=sys.stderr,
    )
    for name in PRETRAINED:
        command = command_of(NextStep("add", {"model": name}), workspace)
        if not at_hand(name):
            install = command_of(NextStep("install", {"extra": EXTRA}))
            command = f"{command}, after {install}"
        print(f"For photos a pre-trained network usually finds more: {command}", file=sys.stderr)


def _announced(images: ImageSet) -> ImageSet:
    """Print a summary and return the images; the class names show if the folder is one level too high."""
    names = [visible(name) for name in images.classes[:5]]
    if len(images.classes) > 5:
        names.append("...")
    found = f"{plural(len(images), 'image')} of {plural(len(images.classes), 'class')}"
    print(f"{found}: {', '.join(names)}", file=sys.stderr)
    return images


def _print_version(
    version: Version, workspace: Path, *, following: str, as_json: bool, check: Check | None = None
) -> None:
    path = Registry(workspace).directory(version.name)
    loss = version.log[-1].loss
    held_out = (workspace / "held-out" / f"{version.name}.safetensors").is_file()
    if as_json:
        print_json(
            {
                "version": version.name,
                "path": str(path),
                "loss": loss,
                "held_out": held_out,
                "trials": version.encoder.about.get("trials", []),
                "check": None if check is None else check.to_json(),
            }
        )
        return
    print(f"{version.name} is in {path}")
    if held_out:
        print("The images held out from training are kept for: fixstar check")
    print(f"Next: {following} -w {workspace}")


@verb("fixstar drop v2 -w shop")
def drop(
    version: Annotated[str, typer.Argument(help="The version to delete.")],
    workspace: WorkspacePath = Path(),
    as_json: AsJson = False,
) -> None:
    """Delete a version that owns no vectors and is not deployed, such as one that the gate refused.

    The first version can be deleted too if it is the only one and nothing is indexed with it; then train again.
    """
    with fixstar.Workspace(workspace, "cpu") as space:
        space.drop(version)
        names = space.versions()
        if names:
            newest = names[-1]
            steps = [space.registry.next_version()]
            told = f"{version} is gone; the next upgrade starts from {newest}"
        else:
            newest = None
            steps = list(FIRST)
            told = f"{version} is gone; there is no version now"
    print_result(
        as_json, {"dropped": version, "newest": newest}, told, *next_lines(steps, workspace)
    )


@verb("fixstar grow 1000 -w shop")
def grow(
    count: Annotated[int, typer.Argument(help="Number of classes to add capacity for.")],
    workspace: WorkspacePath = Path(),
    as_json: AsJson = False,
) -> None:
    """Make room for more classes: the next upgrade gets a second simplex in new dimensions. Nothing stored changes."""
    space = fixstar.Workspace(workspace, "cpu")
    added = space.grow(count)
    first = space.registry.card(space.newest())["classifier"]["options"]["capacity"]
    capacity = first + sum(added)
    taken = len(space.registry.manifest()["by_class"])
    told = f"room for {plural(capacity, 'class')} from the next version on; slots in use: {taken:,}"
    following = f"Next: fixstar upgrade MORE_IMAGES -w {workspace}"
    print_result(
        as_json, {"added": list(added), "capacity": capacity, "classes": taken}, told, following
    )


@verb("fixstar slots -w shop --out slots.json")
def slots(
    workspace: WorkspacePath = Path(),
    out: Annotated[Path | None, typer.Option(help="Write the manifest to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the permanent slot of every class. Separate teams that share this manifest stay interoperable."""
    from fixstar.workspace.files import read_mark

    read_mark(workspace)
    manifest = Registry(workspace).manifest()
    if out is not None:
        replace_json(out, manifest)
    free = "as many as needed"
    if manifest["free"] is not None:
        free = f"{manifest['free']:,}"
    lines = [
        f"{plural(len(manifest['by_class']), 'slot')} in use as of {manifest['version']}; free: {free}"
    ]
    if out is None:
        lines += [f"{slot:>8}  {name}" for name, slot in manifest["by_class"].items()]
    else:
        lines.append(f"written: {out}")
    print_result(as_json, manifest, *lines)


@verb("fixstar retire v1 -w shop", "fixstar retire --unused -w shop")
def retire(
    version: Annotated[str | None, typer.Argument(help="The version to retire.")] = None,
    workspace: WorkspacePath = Path(),
    unused: Annotated[
        bool, typer.Option("--unused", help="Retire every version that is no longer needed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a version's weights and memory, keep its card. Refused while vectors of it exist or it is needed."""
    if (version is None) != unused:
        raise InputError("retire takes a version, or --unused; give one of them")
    retired: list[str] = []
    kept: dict[str, FixstarError] = {}
    with fixstar.Workspace(workspace, "cpu") as space:
        chosen = [version] if version is not None else space.versions()
        for name in chosen:
            try:
                space.retire(name)
                retired.append(name)
            except FixstarError as error:
                if version is not None:
                    raise
                kept[name] = error
    content = {"retired": retired, "kept": {name: str(error) for name, error in kept.items()}}
    lines = [f"retired: {', '.join(retired) or 'none'}"]
    for refusal in kept.values():
        lines.append(str(refusal))
        lines += next_lines(refusal.next_steps, workspace)
    if not kept:
        lines += next_lines([NextStep("status", {}, "what is left")], workspace)
    print_result(as_json, content, *lines)
