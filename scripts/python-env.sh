# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The virtual environment that the Python package and its tests run in. To be
# sourced from the repository's root; defines functions and runs nothing.

# Requirements of pyproject.toml, all extras included, one a line.
python_requirements() {
	python3 - <<-'END'
		import tomllib

		with open("pyproject.toml", "rb") as file:
		    project = tomllib.load(file)["project"]
		extras = project["optional-dependencies"].values()
		print(*dict.fromkeys(sum(extras, project["dependencies"])), sep="\n")
	END
}

# Where the environment is: one for each set of requirements and each Python, so
# that a finished one is never changed, and is found again by every checkout.
python_env() {
	local key
	key=$({ python_requirements && python3 --version; } | sha256sum | cut -c1-16)
	echo "${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/thalweg/python-$key"
}

# Makes it, if it is not there; needs the network only then.
python_env_make() {
	local environment draft requirements
	environment=$(python_env)
	[[ -x $environment/bin/python ]] && return
	mapfile -t requirements < <(python_requirements)
	echo "python: making $environment (${requirements[*]})"
	# A link is the last step: what was interrupted is not found.
	mkdir -p "${environment%/*}"
	draft=$(mktemp --directory "$environment.XXXXXX")
	if ! python3 -m venv "$draft" ||
		! "$draft/bin/python" -m pip --disable-pip-version-check --quiet install "${requirements[@]}"; then
		rm -rf "$draft"
		echo "error: cannot install ${requirements[*]}; pip said why above" >&2
		return 1
	fi
	ln --symbolic --no-target-directory --force "${draft##*/}" "$environment"
}
