"""Packaging of decodax; tool settings live in pyproject.toml."""

import runpy

from setuptools import find_packages, setup

FOLDERS = ("configs", "decoding", "experiments", "kernels", "models", "training")

# flax 0.12.8 with jax 0.11.1 and flax 0.12.9 with jax 0.11.2 fail at import although
# both declare themselves compatible: each Python gets one tested pair.
INSTALL = [
    'jax>=0.10.2,<0.11; python_version<"3.12"',
    'flax>=0.12.8,<0.12.9; python_version<"3.12"',
    'jax>=0.12.0,<0.13; python_version>="3.12"',
    'flax>=0.12.12,<0.13; python_version>="3.12"',
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12.8,<0.13",
    "etils[epath]>=1.12",
    "numpy>=2.0",
    "scipy>=1.13",
    "einops>=0.8.2",
    "absl-py>=2.1",
    "ml_collections>=1.0",
    "pyyaml>=6.0",
    "safetensors>=0.6",
    "filelock>=3.13",  # of JAX's compilation cache, where its size is bounded
    "tokenizers>=0.22",
    "huggingface_hub>=1.0",
    "pyarrow>=18.0",
    "jinja2>=3.1",
    "tensorflow-datasets>=4.9.10",
    "importlib_resources>=6.0",  # tensorflow-datasets imports it undeclared
    "array_record>=0.8",
    "tensorboardX>=2.6",
    "rich>=13.7",
    "matplotlib>=3.9",
]

EXTRAS = {
    # Grammars on the host, and scores of JSONSchemaBench; tests skip without them.
    "constraints": ["llguidance>=1.9,<2", "jsonschema>=4.23"],
    "gcs": ["gcsfs>=2025.2"],  # workdirs, data and models in gs://
    "s3": ["s3fs>=2025.2"],
    "test": [
        "gcsfs>=2025.2",
        "gcp-storage-emulator>=2024.8",
        "pytest>=8.3",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "jsonschema>=4.23",  # judges texts; tests skip without it
        "mctx>=0.0.71",  # the oracle of tree searches; tests skip without it
        "setuptools>=69",  # Python 3.12 and later bring none
        "ruff>=0.8",
        "mypy>=1.13",
    ],
    # jax names the libtpu that each of its versions was tested with. There are wheels
    # for Linux on x86-64; elsewhere the extra is empty, and tests that need it skip.
    # flatbuffers: programs that are handed to another process are written with it.
    "tpu": [
        'jax[tpu]; sys_platform=="linux" and platform_machine=="x86_64"',
        "flatbuffers>=24",
    ],
    "cuda": ["jax[cuda12]"],
    "peers": ["torch>=2.6", "transformers>=4.57"],
}

setup(
    name="decodax",
    version=runpy.run_path("decoding/version.py")["__version__"],
    description="Language-model decoding research in JAX: trees, drafts, kernels.",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=[f"{name}*" for name in FOLDERS]),
    package_data={
        **{name: ["py.typed"] for name in FOLDERS},
        "decoding": ["py.typed", "papers.bib"],
        "models": ["py.typed", "packaged/*/*"],
        "configs": ["py.typed", "trees/*"],
        "experiments": ["py.typed", "reporting/page*", "prompts/*"],
        "training": ["py.typed", "runs/*.j2"],
    },
    install_requires=INSTALL,
    extras_require=EXTRAS,
)
