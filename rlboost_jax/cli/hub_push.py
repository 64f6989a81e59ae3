"""Upload of a folder to a repository of models on the Hugging Face hub.

The token comes from the environment alone, and is part of no message. What is uploaded is private
unless somebody asks for the opposite, and nothing is added to a repository that is public already
unless they do.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError, Mistake, install
from rlboost_jax.settings.memory_estimates import size_text

TOKEN: Final = "HF_TOKEN"
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Weights of an earlier upload in more files than now would stay beside an index that names them.
_REPLACED: Final = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json"),
    *("chat_template*", "additional_chat_templates/*"),
)

Say = Callable[[str], None]


class NotPushed(Mistake, RuntimeError):
    """A folder could not be uploaded; it is unchanged."""


def _huggingface_hub(token: str) -> Any:
    import huggingface_hub

    return huggingface_hub.HfApi(token=token)


class Push:
    """Upload of a folder that is not written yet; mistakes are found before it is.

    Raises:
        ConfigError: no name of a repository, no token, or no huggingface_hub.
    """

    def __init__(
        self,
        name: str,
        *,
        public: bool = False,
        environ: Mapping[str, str] = os.environ,
        api: Callable[[str], Any] = _huggingface_hub,
    ) -> None:
        """Check the name and the token.

        Args:
            name: OWNER/NAME.
            api: makes the hub's client from a token; may raise ImportError.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--push={name} is no name of a repository; give OWNER/NAME")
        self._token = environ.get(TOKEN, "").strip()
        if not self._token:
            raise ConfigError(f"--push={name} needs a token that may write; set it in {TOKEN}")
        try:
            self._api = api(self._token)
        except ImportError:
            raise ConfigError(
                f"--push={name} needs the package huggingface_hub; {install('hf')}"
            ) from None
        self.name, self._public = name, public

    def upload(self, folder: Path, message: str, say: Say) -> None:
        """Upload the files of a folder; say before it what goes where, and after it the address.

        Args:
            message: of the commit.

        Raises:
            NotPushed: the hub does not take it, or there is a public repository of that name.
        """
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = size_text(sum(path.stat().st_size for path in files))
        try:
            self._api.create_repo(
                self.name, private=not self._public, repo_type="model", exist_ok=True
            )
            private = bool(self._api.repo_info(self.name, repo_type="model").private)
            if not private and not self._public:
                raise NotPushed(
                    f"{self.name} is public already, and --public is not given; give it, or name "
                    f"another repository; {folder} is whole"
                )
            seen = "private" if private else "public"
            say(f"uploading {len(files)} files, {size}, of {folder} to {self.name} ({seen})")
            commit = self._api.upload_folder(
                repo_id=self.name,
                folder_path=folder,
                repo_type="model",
                commit_message=message,
                delete_patterns=list(_REPLACED),
            )
        except NotPushed:
            raise
        except Exception as error:  # a zoo: of the hub, of HTTP libraries, of the system
            lines = (line.strip() for line in str(error).splitlines())
            reason = next((line for line in lines if line), "no reason")
            raise NotPushed(
                f"{self.name} does not take {folder} ({type(error).__name__}: "
                f"{reason.replace(self._token, '…')}); the folder is whole: check {TOKEN} and the "
                f"network, then `hf upload {self.name} {folder}`"
            ) from None
        say(f"{self.name}: {getattr(commit, 'commit_url', None) or 'uploaded'}")
